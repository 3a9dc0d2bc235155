"""Pretrained encoders: finding checkpoints, mapping their weights to kmha's, and writing them."""
