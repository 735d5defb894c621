"""Each airline tool as the policy wants it, and the published oddities where `tau2` is on."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mcp_servers.airline.state import Airline, open_airline
from mcp_servers.airline.tools import TOOLBOX, call_tool
from mcp_servers.state import Base, copy_json

NORA = {"first_name": "Nora", "last_name": "Berg", "dob": "1980-01-01"}
EMIL = {"first_name": "Emil", "last_name": "Haas", "dob": "1981-02-02"}


def flight(number: str, origin: str, destination: str, leaves: str, lands: str, **days: str) -> dict[str, Any]:
    dates: dict[str, Any] = {}
    for day, status in {"d20": "available", "d21": "available", "d22": "available", **days}.items():
        seats = {"available_seats": {"basic_economy": 1, "economy": 3, "business": 2}}
        prices = {"prices": {"basic_economy": 60, "economy": 100, "business": 240}}
        dates[f"2026-03-{day[1:]}"] = {"status": status, **(seats | prices if status == "available" else {})}
    times = {"scheduled_departure_time_est": f"{leaves}:00", "scheduled_arrival_time_est": lands}
    return {"flight_number": number, "origin": origin, "destination": destination, **times, "dates": dates}


FLIGHTS = [
    flight("SV1", "LIS", "VIE", "08:00", "11:00:00", d14="landed"),
    flight("SV2", "VIE", "OSL", "12:00", "14:00:00", d22="cancelled"),
    flight("SV3", "VIE", "OSL", "10:00", "12:00:00"),
    flight("SV4", "OSL", "LIS", "09:00", "13:00:00"),
    flight("SV5", "LIS", "OSL", "22:30", "01:30:00+1"),
    flight("SV6", "OSL", "HEL", "01:30", "03:00:00"),
    flight("SV7", "LIS", "OSL", "07:00", "10:00:00"),
]


def reservation(reservation_id: str, **fields: Any) -> dict[str, Any]:
    segment = {"flight_number": "SV7", "origin": "LIS", "destination": "OSL", "date": "2026-03-20", "price": 90}
    return {
        "reservation_id": reservation_id,
        "user_id": "nora",
        "origin": "LIS",
        "destination": "OSL",
        "flight_type": "one_way",
        "cabin": "economy",
        "flights": [segment],
        "passengers": [NORA, EMIL],
        "payment_history": [{"payment_id": "gift_card_1", "amount": 180}],
        "created_at": "2026-02-02T10:00:00",
        "total_baggages": 2,
        "nonfree_baggages": 0,
        "insurance": "no",
        **fields,
    }


BASE = Base(
    {
        "flights": {one["flight_number"]: one for one in FLIGHTS},
        "users": {
            "nora": {
                "user_id": "nora",
                "name": {"first_name": "Nora", "last_name": "Berg"},
                "membership": "silver",
                "payment_methods": {
                    "credit_card_1": {"source": "credit_card", "id": "credit_card_1"},
                    "credit_card_2": {"source": "credit_card", "id": "credit_card_2"},
                    "gift_card_1": {"source": "gift_card", "id": "gift_card_1", "amount": 120},
                    "certificate_1": {"source": "certificate", "id": "certificate_1", "amount": 250},
                },
                "reservations": ["A1"],
            }
        },
        "reservations": {"A1": reservation("A1")},
    },
    {"airports": [{"iata": "LIS", "city": "Lisbon"}]},
)

BOOKING: dict[str, Any] = {
    "user_id": "nora",
    "origin": "LIS",
    "destination": "OSL",
    "flight_type": "one_way",
    "cabin": "economy",
    "flights": [{"flight_number": "SV1", "date": "2026-03-20"}, {"flight_number": "SV2", "date": "2026-03-20"}],
    "passengers": [NORA, EMIL],
    "payment_methods": [{"payment_id": "credit_card_1", "amount": 260}, {"payment_id": "certificate_1", "amount": 250}],
    "total_baggages": 3,
    "nonfree_baggages": 1,
    "insurance": "yes",
}


@pytest.fixture
def airline() -> Airline:
    return open_airline(BASE)


@pytest.fixture
def published() -> Airline:
    return open_airline(BASE, tau2=True)


def ok(airline: Airline, name: str, **arguments: Any) -> Any:
    result = call_tool(airline, name, arguments)
    assert not result.is_error, result.text
    try:
        return json.loads(result.text)
    except ValueError:
        return result.text


def refused(airline: Airline, name: str, **arguments: Any) -> str:
    before = airline.state.hash()
    result = call_tool(airline, name, arguments)
    assert result.is_error, result.text
    assert airline.state.hash() == before
    return result.text.removeprefix("Error: ")


def seats(airline: Airline, number: str, date: str = "2026-03-20") -> dict[str, int]:
    return airline.day(number, date)["available_seats"]


def methods(airline: Airline) -> dict[str, Any]:
    return airline.user("nora")["payment_methods"]


def test_there_are_fourteen_tools_of_which_six_write() -> None:
    assert (len(TOOLBOX.tools), len(TOOLBOX.writes)) == (14, 6)


def test_booking_takes_seats_money_and_the_whole_certificate(airline: Airline) -> None:
    booked = ok(airline, "book_reservation", **BOOKING)
    # 2 × (100 + 100) fares, 2 × 30 insurance, 50 for a bag.
    assert sum(entry["amount"] for entry in booked["payment_history"]) == 510
    assert booked["created_at"] == "2026-03-15T15:00:00"
    assert seats(airline, "SV1")["economy"] == seats(airline, "SV2")["economy"] == 1
    assert "certificate_1" not in methods(airline)
    assert airline.user("nora")["reservations"] == ["A1", booked["reservation_id"]]


def test_the_order_in_which_payments_are_given_makes_no_difference(airline: Airline) -> None:
    other = open_airline(BASE)
    ok(airline, "book_reservation", **BOOKING)
    ok(other, "book_reservation", **{**BOOKING, "payment_methods": BOOKING["payment_methods"][::-1]})
    assert airline.state.hash() == other.state.hash()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"user_id": "x"}, "User x not found"),
        (
            {"cabin": "first"},
            "Reservation cabin: Input should be 'business', 'economy' or 'basic_economy', got 'first'",
        ),
        ({"insurance": "maybe"}, "Reservation insurance: Input should be 'yes' or 'no', got 'maybe'"),
        ({"flights": [{"flight_number": "SV1"}]}, "FlightInfo date: Field required"),
        ({"flights": [{"flight_number": "SV9", "date": "2026-03-20"}]}, "Flight SV9 not found"),
        ({"flights": [{"flight_number": "SV1", "date": "2027-01-01"}]}, "Flight SV1 not found on date 2027-01-01"),
        ({"flights": [{"flight_number": "SV1", "date": "2026-03-14"}]}, "Flight SV1 not available on date 2026-03-14"),
        ({"passengers": [NORA] * 4}, "Not enough seats on flight SV1"),
        ({"passengers": [NORA] * 6}, "A reservation has 1 to 5 passengers, not 6"),
        ({"passengers": []}, "A reservation has 1 to 5 passengers, not 0"),
        ({"nonfree_baggages": 4}, "Paid bags are some of all the checked bags, not 4 of 3"),
        ({"payment_methods": [{"payment_id": "no", "amount": 510}]}, "Payment method no not found"),
        (
            {"payment_methods": [{"payment_id": "gift_card_1", "amount": 510}]},
            "Not enough balance in payment method gift_card_1",
        ),
        (
            {"payment_methods": [{"payment_id": "credit_card_1", "amount": 509}]},
            "Payment amount does not add up, total price is 510, but paid 509",
        ),
        (
            {"payment_methods": [{"payment_id": f"credit_card_{n}", "amount": 255} for n in (1, 2)]},
            "At most 1 credit_card for a reservation, not 2",
        ),
        (
            {"payment_methods": [{"payment_id": "credit_card_1", "amount": 255}] * 2},
            "Payment method credit_card_1 is given 2 times",
        ),
        (
            {
                "payment_methods": [
                    {"payment_id": "credit_card_1", "amount": 510},
                    {"payment_id": "gift_card_1", "amount": 0},
                ]
            },
            "Payment method gift_card_1 can't pay 0",
        ),
        ({"destination": "HEL"}, "The flights lead LIS to VIE to OSL, not LIS to HEL one way"),
        ({"flight_type": "round_trip"}, "The flights lead LIS to VIE to OSL, not LIS to OSL and back"),
        ({"flights": []}, "The flights lead nowhere, not LIS to OSL one way"),
        (
            {
                "flights": [
                    {"flight_number": "SV1", "date": "2026-03-20"},
                    {"flight_number": "SV3", "date": "2026-03-20"},
                ]
            },
            "Flight SV3 leaves before SV1 has landed",
        ),
    ],
)
def test_a_booking_that_can_not_be_is_refused_in_words(airline: Airline, change: dict[str, Any], words: str) -> None:
    assert refused(airline, "book_reservation", **{**BOOKING, **change}).startswith(words)


def test_a_cancellation_gives_back_seats_gift_cards_and_certificates_once(airline: Airline) -> None:
    before = copy_json(methods(airline))
    booked = ok(airline, "book_reservation", **BOOKING)
    cancelled = ok(airline, "cancel_reservation", reservation_id=booked["reservation_id"])
    assert sum(entry["amount"] for entry in cancelled["payment_history"]) == 0
    assert methods(airline) == before
    assert seats(airline, "SV1")["economy"] == 3
    assert "is cancelled" in refused(airline, "cancel_reservation", reservation_id=booked["reservation_id"])
    ok(airline, "cancel_reservation", reservation_id="A1")
    assert methods(airline)["gift_card_1"]["amount"] == 300


def test_the_published_cancellation_credits_nothing_releases_nothing_and_can_be_repeated(published: Airline) -> None:
    for _ in range(2):
        found = ok(published, "cancel_reservation", reservation_id="A1")
    assert [entry["amount"] for entry in found["payment_history"]] == [180, -180, -180, 180]
    assert (methods(published)["gift_card_1"]["amount"], seats(published, "SV7")["economy"]) == (120, 3)


def test_after_a_refund_to_another_card_a_cancellation_pays_back_what_is_left(airline: Airline) -> None:
    down = {"cabin": "basic_economy", "flights": [{"flight_number": "SV7", "date": "2026-03-21"}]}
    ok(airline, "update_reservation_passengers", reservation_id="A1", passengers=[EMIL, NORA])
    assert "Not enough seats" in refused(
        airline, "update_reservation_flights", reservation_id="A1", payment_id="credit_card_1", **down
    )
    up = {"cabin": "business", "flights": [{"flight_number": "SV7", "date": "2026-03-21"}]}
    ok(airline, "update_reservation_flights", reservation_id="A1", payment_id="credit_card_1", **up)
    ok(
        airline,
        "update_reservation_flights",
        reservation_id="A1",
        payment_id="credit_card_2",
        cabin="economy",
        flights=up["flights"],
    )
    cancelled = ok(airline, "cancel_reservation", reservation_id="A1")
    paid = [(entry["payment_id"], entry["amount"]) for entry in cancelled["payment_history"]]
    assert paid == [
        ("gift_card_1", 180),
        ("credit_card_1", 300),
        ("credit_card_2", -280),
        ("gift_card_1", -180),
        ("credit_card_1", -20),
    ]


def test_changed_flights_move_seats_keep_old_prices_and_settle_the_difference(airline: Airline) -> None:
    kept = {"flight_number": "SV7", "date": "2026-03-20"}
    same = ok(
        airline,
        "update_reservation_flights",
        reservation_id="A1",
        cabin="economy",
        flights=[kept],
        payment_id="gift_card_1",
    )
    assert (same["flights"][0]["price"], airline.state.changes()) == (90, {})
    moved = {"flight_number": "SV7", "date": "2026-03-21"}
    found = ok(
        airline,
        "update_reservation_flights",
        reservation_id="A1",
        cabin="economy",
        flights=[moved],
        payment_id="gift_card_1",
    )
    assert found["payment_history"][-1] == {"payment_id": "gift_card_1", "amount": 20}
    assert methods(airline)["gift_card_1"]["amount"] == 100
    assert (seats(airline, "SV7")["economy"], seats(airline, "SV7", "2026-03-21")["economy"]) == (5, 1)


def test_another_cabin_costs_todays_price_and_moves_the_seats_to_it(airline: Airline) -> None:
    kept = {"flight_number": "SV7", "date": "2026-03-20"}
    found = ok(
        airline,
        "update_reservation_flights",
        reservation_id="A1",
        cabin="business",
        flights=[kept],
        payment_id="credit_card_1",
    )
    assert (found["cabin"], found["payment_history"][-1]["amount"]) == ("business", 300)
    assert (seats(airline, "SV7")["economy"], seats(airline, "SV7")["business"]) == (5, 0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"payment_id": "no"}, "Payment method not found"),
        ({"payment_id": "certificate_1"}, "Certificate cannot be used to update reservation"),
        ({"payment_id": "gift_card_1", "cabin": "business"}, "Gift card balance is not enough"),
        ({"cabin": "first"}, "Cabin must be one of basic_economy, economy, business, not 'first'"),
        ({"flights": [{"flight_number": "SV4", "date": "2026-03-20"}]}, "The flights lead OSL to LIS"),
        ({"flights": []}, "The flights lead nowhere"),
        ({"reservation_id": "A9"}, "Reservation A9 not found"),
    ],
)
def test_a_change_of_flights_that_can_not_be_is_refused(
    airline: Airline, arguments: dict[str, Any], words: str
) -> None:
    plain = {
        "reservation_id": "A1",
        "cabin": "economy",
        "flights": [{"flight_number": "SV7", "date": "2026-03-20"}],
        "payment_id": "credit_card_1",
    }
    assert refused(airline, "update_reservation_flights", **{**plain, **arguments}).startswith(words)


def test_the_published_change_of_flights_moves_no_seat_and_takes_any_trip(published: Airline) -> None:
    other = [{"flight_number": "SV4", "date": "2026-03-20"}]
    found = ok(
        published,
        "update_reservation_flights",
        reservation_id="A1",
        cabin="economy",
        flights=other,
        payment_id="gift_card_1",
    )
    assert (found["payment_history"][-1]["amount"], seats(published, "SV4")["economy"]) == (20, 3)
    emptied = ok(
        published,
        "update_reservation_flights",
        reservation_id="A1",
        cabin="economy",
        flights=[],
        payment_id="gift_card_1",
    )
    assert (emptied["flights"], methods(published)["gift_card_1"]["amount"]) == ([], 300)
    words = refused(
        published,
        "update_reservation_flights",
        reservation_id="A1",
        cabin="first",
        flights=other,
        payment_id="gift_card_1",
    )
    assert words == "'first'"


def test_bags_are_charged_when_newly_paid_and_never_taken_away(airline: Airline) -> None:
    found = ok(
        airline,
        "update_reservation_baggages",
        reservation_id="A1",
        total_baggages=6,
        nonfree_baggages=2,
        payment_id="gift_card_1",
    )
    assert (found["payment_history"][-1]["amount"], methods(airline)["gift_card_1"]["amount"]) == (100, 20)
    fewer = {"reservation_id": "A1", "payment_id": "credit_card_1"}
    assert "not taken away" in refused(
        airline, "update_reservation_baggages", total_baggages=5, nonfree_baggages=2, **fewer
    )
    assert "not 9 of 8" in refused(
        airline, "update_reservation_baggages", total_baggages=8, nonfree_baggages=9, **fewer
    )
    assert "whole number" in refused(
        airline, "update_reservation_baggages", total_baggages="8", nonfree_baggages=2, **fewer
    )


def test_the_published_bags_can_become_fewer_for_nothing(published: Airline) -> None:
    arguments = {"reservation_id": "A1", "payment_id": "gift_card_1", "nonfree_baggages": 0}
    found = ok(published, "update_reservation_baggages", total_baggages=0, **arguments)
    assert (found["total_baggages"], len(found["payment_history"])) == (0, 1)


def test_passengers_are_replaced_in_number_and_described_in_full(airline: Airline) -> None:
    other = {"first_name": "Alba", "last_name": "Leone", "dob": "1999-09-09"}
    found = ok(
        airline, "update_reservation_passengers", reservation_id="A1", passengers=[NORA, {**other, "seat": "1A"}]
    )
    assert found["passengers"] == [NORA, other]
    one = refused(airline, "update_reservation_passengers", reservation_id="A1", passengers=[NORA])
    assert one == "Number of passengers does not match"
    nameless = refused(airline, "update_reservation_passengers", reservation_id="A1", passengers=[NORA, {"dob": "x"}])
    assert nameless.startswith("Passenger first_name: Field required")


def test_certificates_are_sent_without_end_and_the_published_ones_three_times(
    airline: Airline, published: Airline
) -> None:
    said = [ok(airline, "send_certificate", user_id="nora", amount=50) for _ in range(5)]
    assert said[0] == "Certificate certificate_901 added to user nora with amount 50."
    assert len({*said}) == 5
    assert "not -1" in refused(airline, "send_certificate", user_id="nora", amount=-1)
    amounts = (50, "75", 100.5)
    for amount in amounts:
        ok(published, "send_certificate", user_id="nora", amount=amount)
    assert [methods(published)[f"certificate_322132{n}"]["amount"] for n in (2, 3, 4)] == [50, 75, 100.5]
    assert refused(published, "send_certificate", user_id="nora", amount=1) == "Too many certificates"


def test_published_bookings_are_three_at_most_and_need_not_lead_anywhere(published: Airline) -> None:
    terms = {"flights": [], "passengers": [], "payment_methods": [], "nonfree_baggages": 0, "destination": "XXX"}
    ids = [ok(published, "book_reservation", **{**BOOKING, **terms})["reservation_id"] for _ in range(3)]
    assert ids == ["HATHAT", "HATHAU", "HATHAV"]
    assert refused(published, "book_reservation", **{**BOOKING, **terms}) == "Too many reservations"


def test_direct_flights_are_those_that_can_be_booked_on_the_date(airline: Airline) -> None:
    route = {"origin": "VIE", "destination": "OSL", "date": "2026-03-22"}
    (found,) = ok(airline, "search_direct_flight", **route)
    assert (found["flight_number"], found["date"]) == ("SV3", "2026-03-22")
    assert ok(airline, "search_direct_flight", **{**route, "date": "2031-01-01"}) == []
    assert airline.state.base.meta["airports"] == ok(airline, "list_all_airports")


def test_one_stop_flights_wait_for_the_first_to_land_also_after_midnight(airline: Airline, published: Airline) -> None:
    route = {"origin": "LIS", "destination": "OSL", "date": "2026-03-20"}
    pairs = ok(airline, "search_onestop_flight", **route)
    assert [[one["flight_number"] for one in pair] for pair in pairs] == [["SV1", "SV2"]]
    late = {"origin": "LIS", "destination": "HEL", "date": "2026-03-20"}
    (overnight,) = ok(airline, "search_onestop_flight", **late)
    assert [(one["flight_number"], one["date"]) for one in overnight] == [("SV5", "2026-03-20"), ("SV6", "2026-03-21")]
    assert ok(published, "search_onestop_flight", **late) == []


def test_reads_say_what_is_not_there(airline: Airline) -> None:
    assert refused(airline, "get_user_details", user_id="x") == "User x not found"
    assert refused(airline, "get_reservation_details", reservation_id="x") == "Reservation x not found"
    assert refused(airline, "get_flight_status", flight_number="SV1", date="x") == "Flight SV1 not found on date x"
    assert ok(airline, "get_flight_status", flight_number="SV2", date="2026-03-22") == "cancelled"
    assert "status" not in ok(airline, "get_reservation_details", reservation_id="A1")
    assert ok(airline, "calculate", expression="2 * (30 + 5)") == 70.0
