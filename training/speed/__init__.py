"""Benchmark of training speed: kmha compared with KerasHub and PyTorch, in turns."""
