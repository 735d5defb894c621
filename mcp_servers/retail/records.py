"""The shapes of the retail world: what tools take and answer, as MCP clients are told.

Knows nothing about tools or state. reads.py and writes.py take their parameter types from here, server.py the outputs.
"""

from __future__ import annotations

from typing import Annotated, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

OrderId = Annotated[str, Field(description="Order id with its leading '#', such as #K482.")]
UserId = Annotated[str, Field(description="User id, such as sofia_rossi_482.")]
ProductId = Annotated[str, Field(description="Product id; not the id of one of its items.")]
ItemId = Annotated[str, Field(description="Item id: one variant of a product.")]
PaymentMethodId = Annotated[
    str, Field(description="Id of one of the customer's payment methods, such as gift_card_482.")
]
ItemIds = Annotated[
    list[str], Field(description="Ids of items in the order; one that is there twice may be given twice.")
]
NewItemIds = Annotated[
    list[str],
    Field(description="Ids of the new items, in the order of item_ids; each of the same product as its old one."),
]
Reason = Annotated[str, Field(description="Either 'no longer needed' or 'ordered by mistake'.")]
Email = Annotated[str, Field(description="E-mail address of the account.")]
FirstName = Annotated[str, Field(description="First name.")]
LastName = Annotated[str, Field(description="Last name.")]
Zip = Annotated[str, Field(description="Zip code of the address.")]
Street = Annotated[str, Field(description="First line of the address, such as 482 Maple Street.")]
Suite = Annotated[str, Field(description="Second line of the address; empty if there is none.")]
City = Annotated[str, Field(description="City.")]
StateCode = Annotated[str, Field(description="State, such as TX.")]
Country = Annotated[str, Field(description="Country, such as USA.")]
Expression = Annotated[str, Field(description="Numbers with + - * / and parentheses.")]
Summary = Annotated[str, Field(description="What the customer wants, for the person who takes over.")]


class Address(TypedDict):
    """Where something goes."""

    address1: str
    address2: str
    city: str
    country: str
    state: str
    zip: str


class Name(TypedDict):
    """A person's name."""

    first_name: str
    last_name: str


class PaymentMethod(TypedDict):
    """A way to pay; a gift card has a balance, a credit card a brand and last digits."""

    source: str
    id: str
    brand: NotRequired[str]
    last_four: NotRequired[str]
    balance: NotRequired[float]


class User(TypedDict):
    """A customer."""

    user_id: str
    name: Name
    address: Address
    email: str
    payment_methods: dict[str, PaymentMethod]
    orders: list[str]


class Variant(TypedDict):
    """One item of a product."""

    item_id: str
    options: dict[str, str]
    available: bool
    price: float


class Product(TypedDict):
    """A product and its items by item id."""

    name: str
    product_id: str
    variants: dict[str, Variant]


class OrderLine(TypedDict):
    """One item that was ordered."""

    name: str
    product_id: str
    item_id: str
    price: float
    options: dict[str, str]


class Payment(TypedDict):
    """Money that moved: transaction_type is payment or refund."""

    transaction_type: str
    amount: float
    payment_method_id: str


class Fulfillment(TypedDict):
    """A parcel."""

    tracking_id: list[str]
    item_ids: list[str]


class Order(TypedDict):
    """An order; what was never requested is left out or null."""

    order_id: str
    user_id: str
    address: Address
    items: list[OrderLine]
    status: str
    payment_history: list[Payment]
    fulfillments: NotRequired[list[Fulfillment]]
    cancel_reason: NotRequired[str | None]
    exchange_items: NotRequired[list[str] | None]
    exchange_new_items: NotRequired[list[str] | None]
    exchange_payment_method_id: NotRequired[str | None]
    exchange_price_difference: NotRequired[float | None]
    return_items: NotRequired[list[str] | None]
    return_payment_method_id: NotRequired[str | None]
