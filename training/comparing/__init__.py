"""Attention beside other networks, trained on the same rows with the same budget and as many weights."""
