"""Who gets which job, and why a job could never be given to anybody. Pure functions."""
