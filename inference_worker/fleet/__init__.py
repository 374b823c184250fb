"""Engine processes behind one front."""
