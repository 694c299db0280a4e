//! Durable work over live tasks.
