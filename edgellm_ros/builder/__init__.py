"""From a checkpoint to an engine directory. Needs the extra [build]; nothing at run time imports it."""
