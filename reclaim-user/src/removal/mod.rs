//! The only code that changes a disk: list, condemn, wait, confirm, remove.
