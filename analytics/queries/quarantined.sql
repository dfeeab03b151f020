-- Which cards are held back because nobody confirmed that they are free?
SELECT at, node, job, attempt, bitCount(card_mask) AS cards, card_milli, reason
FROM capacity_quarantined
ORDER BY at DESC, node
