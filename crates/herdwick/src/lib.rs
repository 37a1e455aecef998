//! The Herdwick client: the best way in, or plain memcached
