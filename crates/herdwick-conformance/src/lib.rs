//! Behaviours that every fabric provider shows, and a seeded fabric that misbehaves
