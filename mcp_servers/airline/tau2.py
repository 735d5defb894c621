"""Reads the airline data of a τ²-bench folder (db.json) as a base of ours.

Knows nothing about sessions or tools. Used by server.py when --db names a JSON file, and by the replay tests.
"""

from __future__ import annotations

from pathlib import Path

from mcp_servers.airline.records import Booked, Flight, User
from mcp_servers.airline.state import FLIGHTS, RESERVATIONS, USERS
from mcp_servers.state import Base
from mcp_servers.tau2 import read_database

SHAPES = {FLIGHTS: Flight, USERS: User, RESERVATIONS: Booked}
NOW = "2024-05-15T15:00:00"
# The published tools have the airports in their code, not in the data; the order is theirs.
AIRPORTS = {
    "SFO": "San Francisco",
    "JFK": "New York",
    "LAX": "Los Angeles",
    "ORD": "Chicago",
    "DFW": "Dallas",
    "DEN": "Denver",
    "SEA": "Seattle",
    "ATL": "Atlanta",
    "MIA": "Miami",
    "BOS": "Boston",
    "PHX": "Phoenix",
    "IAH": "Houston",
    "LAS": "Las Vegas",
    "MCO": "Orlando",
    "EWR": "Newark",
    "CLT": "Charlotte",
    "MSP": "Minneapolis",
    "DTW": "Detroit",
    "PHL": "Philadelphia",
    "LGA": "LaGuardia",
}


def tau2_base(file: Path) -> Base:
    """The base in a τ²-bench airline db.json. ServerError where it is missing or something else."""
    airports = [{"iata": iata, "city": city} for iata, city in AIRPORTS.items()]
    return read_database(file, SHAPES, {"now": NOW, "airports": airports})
