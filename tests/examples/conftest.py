"""The examples are run by their tests, each in a folder of its own."""

collect_ignore = ["python_use.py", "torch_convolution.py"]
