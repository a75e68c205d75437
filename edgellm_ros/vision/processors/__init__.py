"""One image processor per family, equal to the one the family was trained with."""
