"""From a manifest to what is: parse, observe, plan, apply, one status. Level-triggered: whatever happened, the same
function runs, and does only what is missing."""
