"""Training from few labels: contrastive stage, linear head and their choice by cross-validation."""
