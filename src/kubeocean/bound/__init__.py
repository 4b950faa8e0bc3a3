"""What every process of one binding needs: how its worker is reached, while credentials change."""
