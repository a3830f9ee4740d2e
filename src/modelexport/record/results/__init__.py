"""What each verb returns, as frozen values."""
