"""A small bank: accounts, balances, transfers. `make demo` starts it and talks to it.

    duet-rpc serve examples/bank.py

Money is counted in cents. The hints are the interface: what does not fit them is refused before a
function here runs, and `rpc.discover` describes them to callers. What can go wrong is declared as
errors with codes of their own.
"""

import time
from dataclasses import dataclass, replace
from typing import Annotated, NewType

import msgspec

from duet_rpc import Context, RpcError, Service

bank = Service("bank", version="1.0", description="A small bank")

Cents = Annotated[int, msgspec.Meta(gt=0)]
Number = NewType("Number", str)


@dataclass(frozen=True)
class Account:
    number: Number
    owner: str
    balance: int


@dataclass(frozen=True)
class Receipt:
    id: int
    cents: int
    balances: dict[Number, int]


accounts: dict[Number, Account] = {}
receipts: list[Receipt] = []


class UnknownAccount(RpcError):
    """No account has this number."""

    code, message = 2001, "Unknown account"


class InsufficientFunds(RpcError):
    """The account holds less than what was asked for."""

    code, message = 2002, "Insufficient funds"


class SameAccount(RpcError):
    """Money was to be moved from an account to itself."""

    code, message = 2003, "Source and target are the same account"


@bank.query
def balance(account: Number) -> Account:
    """Look up an account."""
    return find(account)


@bank.query(name="bank.accounts")
def list_accounts() -> list[Account]:
    """List all accounts."""
    return list(accounts.values())


@bank.command
def open(
    owner: Annotated[str, msgspec.Meta(min_length=1)], deposit: Cents | None = None
) -> Account:
    """Open an account, with a first deposit or without."""
    number = Number(f"A-{len(accounts) + 1}")
    accounts[number] = Account(number, owner, deposit or 0)
    return accounts[number]


@bank.command
def transfer(source: Number, target: Number, cents: Cents) -> Receipt:
    """Move money from one account to another, and print the receipt."""
    giving, taking = find(source), find(target)
    if source == target:
        raise SameAccount(data={"account": source})
    if giving.balance < cents:
        raise InsufficientFunds(data={"balance": giving.balance, "missing": cents - giving.balance})
    giving = accounts[source] = replace(giving, balance=giving.balance - cents)
    taking = accounts[target] = replace(taking, balance=taking.balance + cents)
    balances = {source: giving.balance, target: taking.balance}
    receipt = Receipt(len(receipts) + 1, cents, balances)
    receipts.append(receipt)
    # A stray print, of the kind that breaks a protocol on stdout. Here it ends up in the log.
    print(f"receipt {receipt.id}: {cents / 100:.2f} from {giving.owner} to {taking.owner}")
    return receipt


@bank.query
def audit(ctx: Context, *, hours: Annotated[float, msgspec.Meta(ge=0, le=24)] = 0) -> int:
    """Add up all the money there is. Auditors take their time, but stop when told to."""
    until = time.monotonic() + hours * 3600
    while time.monotonic() < until and not ctx.cancelled:
        time.sleep(0.01)
    return sum(account.balance for account in accounts.values())


def find(number: Number) -> Account:
    """Look up an account by its number; raise `UnknownAccount` if there is none."""
    if number not in accounts:
        raise UnknownAccount(data={"account": number})
    return accounts[number]


if __name__ == "__main__":
    bank.run()
