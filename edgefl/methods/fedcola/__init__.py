"""FedCola in its two published forms: transfer between towers, and one modality-agnostic transformer."""
