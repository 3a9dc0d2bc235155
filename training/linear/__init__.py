"""The linear path of a model: fitted by scikit-learn, and combined with the encoder."""
