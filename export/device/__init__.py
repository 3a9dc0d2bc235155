"""What a device needs beside a model file: tokenizers without dependencies, to be copied as they are."""
