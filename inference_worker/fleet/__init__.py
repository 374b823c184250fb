"""Engine processes behind one server."""
