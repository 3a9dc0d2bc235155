"""Distillation: training a student with the outputs of a teacher."""
