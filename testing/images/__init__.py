"""The build context of the images, and LBG installed and locked down as in a container."""
