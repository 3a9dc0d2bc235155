"""The three jobs and masked-LM pretraining, behind one protocol."""
