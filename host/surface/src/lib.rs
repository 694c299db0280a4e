//! What programs and people see of a host.
