"""How good the answers are: evaluation, calibration, and what hostile text does to them."""
