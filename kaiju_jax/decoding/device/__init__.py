"""The cache on the device, and the compiled calls that read and write it."""
