"""What trained models do: measures, tables and pictures. Nothing here is needed for training."""
