"""`lbg demo`: the figures of «Sticky Load Balancing» played on a broker, and the proof."""
