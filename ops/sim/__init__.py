"""A simulator in virtual time: traffic, a scheduling policy and modelled engines, without waiting for any clock."""
