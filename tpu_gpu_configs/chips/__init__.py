"""What each chip's maker publishes, and what others measured on it."""
