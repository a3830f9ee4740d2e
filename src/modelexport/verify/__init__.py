"""An independent witness: numbers and attributions held against values."""
