"""The front end: any TensorFlow SavedModel or Keras file in, a package out (docs/import.md)."""
