//! memcached's text protocol as bytes: parse requests, format replies
