"""The brokers that groups live on, as their administrator: who they are, one admin for each, one look at all groups."""
