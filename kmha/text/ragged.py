"""`tf.RaggedTensor` with its constructors, which its type stubs lack."""

from typing import Any

import tensorflow as tf

Ragged: Any = tf.RaggedTensor
