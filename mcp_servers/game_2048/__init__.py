"""The game 2048 as a task server: reach a tile or a score in a limited number of moves."""
