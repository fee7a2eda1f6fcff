"""The explorers: each module computes the steps of one (pure) and wires them to controls."""
