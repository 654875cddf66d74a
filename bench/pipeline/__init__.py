"""The pipeline beside others that judge the same journal; see `bench.pipeline.__main__`."""
