"""Reconciling: parse, observe, plan, apply, one status. Level-triggered."""
