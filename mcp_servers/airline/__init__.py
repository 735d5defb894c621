"""Airline: users, flights and reservations, and an agent that helps travellers within a policy."""
