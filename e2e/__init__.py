"""The whole of LBG on a real cluster: `make e2e`."""
