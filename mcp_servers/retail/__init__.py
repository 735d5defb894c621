"""Retail: users, orders and products, and an agent that helps customers within a policy."""
