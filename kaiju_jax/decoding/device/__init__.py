"""The cache's arrays, and the calls of the model that read and write them."""
