"""The program that each rank runs. The environment plans the fault: `injector.fail_at()`."""

from tests.faults.matrix.injector import at


def main() -> None:
    at("before import")
    from tests.faults.matrix import training

    training.main()


if __name__ == "__main__":
    main()
