"""The pipeline's specification in plain Python, and its input and output."""
