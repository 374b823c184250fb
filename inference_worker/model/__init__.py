"""Models, tokenizers and the devices that they run on."""
