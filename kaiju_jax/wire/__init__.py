"""What crosses between devices: codes, trits and six-bit gradients."""
